"""Step labels without people; `labelling.py` says what a source is."""
