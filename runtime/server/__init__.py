"""One bundle over HTTP, as the OpenAI API speaks it. Needs the extra ``serve``."""
