"""MySQL and MariaDB as capture reads them."""
