"""The doors: each turns one interface's requests into `GenerationRequest`s and the engine's deltas into its replies."""
