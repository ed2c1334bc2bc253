"""PDF files small enough to be written by hand."""

from __future__ import annotations

from io import BytesIO

from pypdf import PdfWriter


def pdf(*pages: str) -> bytes:
    """A file with a line of text on each page; a page of an empty text has none, as a scan."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        drawn = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET" if text else "0 0 612 792 re f"
        objects += [
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >> "
            f"/Contents {5 + 2 * number} 0 R >>",
            f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream",
        ]
    out, starts = "%PDF-1.4\n", []
    for number, text in enumerate(objects, 1):
        starts.append(len(out))
        out += f"{number} 0 obj\n{text}\nendobj\n"
    table = "".join(f"{start:010} 00000 n \n" for start in starts)
    size = len(objects) + 1
    return (
        f"{out}xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<< /Size {size} /Root 1 0 R >>\n"
        f"startxref\n{len(out)}\n%%EOF\n"
    ).encode("latin-1")


def encrypted(data: bytes, password: str) -> bytes:
    """``data`` as a file that opens with ``password`` alone."""
    writer = PdfWriter(clone_from=BytesIO(data))
    writer.encrypt(password, "owner", algorithm="RC4-128")
    out = BytesIO()
    writer.write(out)
    return out.getvalue()
