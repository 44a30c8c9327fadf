"""What every page is made of: the HTML shell, charts, tables, and plots as files."""
