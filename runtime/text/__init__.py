"""Text in and out: tokenizers, chat templates, and the bytes of tokens. A leaf: anyone may import it."""
