"""MindIE's `POST /infer` and `/infer_token`."""
