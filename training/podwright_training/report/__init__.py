"""Report a run: history, curve analysis, figures and the page."""
