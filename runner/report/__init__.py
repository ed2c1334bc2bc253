"""What a person sees of a job."""
