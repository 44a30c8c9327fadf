"""A comparison for readers: tables, figures and the page."""
