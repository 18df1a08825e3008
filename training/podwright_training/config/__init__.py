"""The configuration of a run: options, presets, model architecture, layout. No torch."""
