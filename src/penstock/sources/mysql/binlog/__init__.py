"""The binary log: from the bytes a server sends to a replica, to Arrow columns of text.

The way of an event, one module each:

    stream      a connection that the server takes for a replica's; batches of raw bytes
    packets     where in them events are; checksums are verified and cut off, error packets become errors
    unwrapping  transactions that were compressed as a whole, MariaDB's compressed events: as if they were not
    events      headers only: transactions, and where the rows of which table are
    table_map   what the server says of a table before its rows
    rows        rows of one table: where their values are, the old image, what was left out
    columns     values of one column, to Arrow text

Whatever is done per event, row or value is compiled (`*_kernels`); a Python object is made per batch, per
column of a batch, and for what is rare: statements, tables seen for the first time, changes of file.
"""
