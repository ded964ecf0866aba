"""What the live lane asks Postgres itself: tables, first rows, subsets; and what it has published."""
