"""What came out, for people: pages, charts and tables for a terminal."""
