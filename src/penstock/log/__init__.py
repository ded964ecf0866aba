"""The change log: steps of whole transactions, Parquet per table, one manifest that commits each."""
