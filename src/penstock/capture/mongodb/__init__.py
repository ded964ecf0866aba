"""What capture knows of MongoDB."""
