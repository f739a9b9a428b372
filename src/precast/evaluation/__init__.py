"""How good a model's predictions are, and how far two forms of one model lie apart (docs/quality.md)."""
