"""Documents out of files: text and Markdown as they stand, HTML and PDF as text, a folder as all that is in it."""

from __future__ import annotations

import logging
import re
import stat
from contextlib import suppress
from functools import lru_cache
from io import BytesIO
from pathlib import Path

from runner.errors import ConfigError, PromptError

_TEXT = (".txt", ".md", ".markdown", ".rst")
_HTML = (".html", ".htm")
_PDF = (".pdf",)
_KINDS = "text, Markdown, HTML or PDF"
_CHARSET = re.compile(rb"""<meta[^>]+charset\s*=\s*["']?(?!utf)([\w.:-]+)""", re.IGNORECASE)


def read_document(path: str | Path, folder: Path = Path()) -> str:
    """The text of a file, or of the documents in a folder.

    HTML becomes Markdown: headings, lists and tables stay, links and pictures leave their words. The pages of a
    PDF have blank lines between them. Of a folder all files with the name of a text, HTML or PDF are read, in the
    order of their paths and each below a heading with its own; hidden and blank ones are left out. What has not
    changed since is read once in a process.

    Args:
        path: of the file or folder; ``~`` is the home folder.
        folder: where a relative ``path`` begins.

    Raises:
        PromptError: there is no such file or folder, or nothing that can be read, or no text in it.
        ConfigError: it is HTML or PDF, and the ``documents`` extra is not installed.
    """
    try:
        path = folder / Path(path).expanduser()
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            return _folder(path)
        if not stat.S_ISREG(kind):
            raise PromptError(f"{path} is neither a file nor a folder; name a {_KINDS} file")
        text = _file(path)
    except FileNotFoundError as error:
        missing = error.filename or path
        raise PromptError(
            f"there is no document {missing}; name a {_KINDS} file, or a folder of them"
        ) from None
    except OSError as error:
        raise PromptError(
            f"{error.filename or path} cannot be read: {error.strerror}; name another document"
        ) from None
    except (RuntimeError, ValueError) as error:
        # No home folder, or a NUL in the name.
        raise PromptError(
            f"{str(path)!r} names no file ({error}); name a {_KINDS} file, or a folder of them"
        ) from None
    if not text:
        raise PromptError(f"{path} is empty; give a document that says something")
    return text


def _folder(folder: Path) -> str:
    """Everything in ``folder`` that is a document.

    Raises:
        PromptError: there is none, or one cannot be read.
    """
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    parts = []
    for name in sorted(found):
        hidden = any(part.startswith(".") for part in name.split("/"))
        wanted = found[name].suffix.lower() in (*_TEXT, *_HTML, *_PDF)
        if wanted and not hidden and found[name].is_file() and (text := _file(found[name])):
            parts.append(f"# {name}\n\n{text}")
    if not parts:
        raise PromptError(
            f"{folder} holds no documents with text in them; name a folder of {_KINDS} files "
            f"({', '.join((*_TEXT, *_HTML, *_PDF))})"
        )
    return "\n\n".join(parts)


def _file(path: Path) -> str:
    now = path.stat()
    return _extracted(path.absolute(), path, now.st_mtime_ns, now.st_size)


@lru_cache(maxsize=1024)
def _extracted(place: Path, path: Path, changed_ns: int, size: int) -> str:
    """The text of a file, without space around it. All but ``path`` only tell one state of a file from another.

    Raises:
        PromptError: it cannot be read as what its name says.
    """
    data = path.read_bytes()
    match path.suffix.lower():
        case suffix if suffix in _PDF:
            text = _pdf(data, path)
        case suffix if suffix in _HTML:
            text = _html(data, path)
        case _:
            text = _text(data, path)
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _text(data: bytes, path: Path) -> str:
    try:
        text = data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise PromptError(
            f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8, or give HTML or PDF"
        ) from None
    if "\0" in text:
        raise PromptError(f"{path} looks binary (byte {data.index(0)} is NUL); give {_KINDS}")
    return text


def _html(data: bytes, path: Path) -> str:
    try:
        from bs4 import BeautifulSoup
        from markdownify import MarkdownConverter
    except ImportError:
        raise _without_extra(path) from None
    soup = BeautifulSoup(_decoded(data, path), "html.parser")
    for tag in soup(["script", "style", "template", "noscript"]):
        tag.decompose()
    for picture in soup("img"):
        # Else a picture that is written into the page is a hundred thousand characters of base64.
        picture.replace_with(str(picture.get("alt") or ""))
    # A model reads the escapes of Markdown as they are written, and a link's address is many tokens.
    converter = MarkdownConverter(
        heading_style="ATX",
        bullets="-",
        strip=["a"],
        escape_asterisks=False,
        escape_underscores=False,
        escape_misc=False,
    )
    try:
        text = str(converter.convert_soup(soup))
    except RecursionError:
        raise PromptError(f"{path} is nested too deeply to be read; save it as text or PDF") from None
    return re.sub(r"[ \t]+$", "", re.sub(r"\n\s*\n", "\n\n", text), flags=re.MULTILINE)


def _decoded(data: bytes, path: Path) -> str:
    """A page in UTF-8, or else in what it says that it is in.

    Raises:
        PromptError: it is in neither.
    """
    try:
        return _text(data, path)
    except PromptError:
        declared = _CHARSET.search(data[:4096])
        if declared is not None and b"\0" not in data:
            with suppress(LookupError, UnicodeError):
                return data.decode(declared[1].decode())
        raise


def _pdf(data: bytes, path: Path) -> str:
    try:
        import pypdf
        from pypdf.errors import DependencyError, FileNotDecryptedError
    except ImportError:
        raise _without_extra(path) from None
    # What it mends by itself is nobody's to act on, and would be more than the one line of an error.
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        pages = [page.extract_text() for page in pypdf.PdfReader(BytesIO(data)).pages]
    except (DependencyError, FileNotDecryptedError):
        raise PromptError(f"{path} is encrypted; save a copy of it without a password") from None
    except Exception as error:
        # A damaged file ends in whatever the parser trips over.
        raise PromptError(
            f"{path} is no PDF that can be read ({error or type(error).__name__}); save it anew, or give its text"
        ) from None
    # A font without a proper table of characters gives NULs and halves of surrogate pairs.
    text = "\n\n".join(page.strip() for page in pages if page.strip()).replace("\0", "")
    text = text.encode("utf-8", "replace").decode()
    if not text.strip():
        raise PromptError(
            f"{path} has no text on its pages, as a scan has none; run OCR over it, or give its text"
        )
    return text


def _without_extra(path: Path) -> ConfigError:
    return ConfigError(
        f"{path}: {path.suffix} files need the documents extra; pip install 'kvswarm[documents]'"
    )
