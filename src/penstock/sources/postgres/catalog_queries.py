"""The catalog's questions to Postgres, each asked once for any number of tables.

They hold from version 14 on; columns that came later are read through `to_jsonb`, which leaves out
what a server does not have.
"""

from __future__ import annotations

#: Relations of the wanted schemas. Partitions are here too, with `is_partition`.
RELATIONS = """
SELECT c.oid::bigint AS oid, n.nspname AS namespace, c.relname AS name, c.relkind::text AS kind,
       c.relpersistence::text AS persistence, c.relispartition AS is_partition,
       c.relreplident::text AS replica_identity,
       c.relrowsecurity AS row_security, c.relforcerowsecurity AS row_security_forced,
       c.reltuples::double precision AS estimated_rows, c.relpages AS estimated_pages
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm')
  AND (n.nspname = ANY(%(namespaces)s)
       OR (%(all_user_namespaces)s AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'))
ORDER BY n.nspname, c.relname
"""

#: The leaves of each wanted relation: a plain table is its own leaf. Multi-level trees are flattened.
LEAVES = """
SELECT r.oid::bigint AS root, c.oid::bigint AS oid, n.nspname AS namespace, c.relname AS name,
       c.relkind::text AS kind, c.relpersistence::text AS persistence,
       c.relreplident::text AS replica_identity,
       c.reltuples::double precision AS estimated_rows, c.relpages AS estimated_pages,
       coalesce(pg_relation_filenode(c.oid), 0)::bigint AS filenode,
       coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::bigint AS pages,
       coalesce(pg_table_size(c.oid), 0) AS bytes,
       coalesce(has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'), false)
         AS may_select,
       coalesce(row_security_active(c.oid), false) AS row_security_active,
       coalesce(pg_has_role(c.relowner, 'USAGE'), false) AS owned,
       pg_get_userbyid(c.relowner) AS owner,
       coalesce(
         (SELECT i.xmin::text FROM pg_inherits AS i WHERE i.inhrelid = c.oid AND root.relkind = 'p'), ''
       ) AS attached
FROM unnest(%(oids)s::bigint[]::oid[]) AS r (oid)
JOIN pg_class AS root ON root.oid = r.oid
CROSS JOIN LATERAL (
    SELECT root.oid AS relid WHERE root.relkind <> 'p'
    UNION ALL
    SELECT t.relid FROM pg_partition_tree(root.oid) AS t WHERE root.relkind = 'p' AND t.isleaf
) AS leaf
JOIN pg_class AS c ON c.oid = leaf.relid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'f', 'm', 'v')
ORDER BY 1, n.nspname, c.relname
"""

#: Columns with the type below any domains, and the modifier the domains give it.
COLUMNS = """
WITH RECURSIVE domain AS (
    SELECT t.oid, t.typbasetype AS type, t.typtypmod AS modifier FROM pg_type AS t WHERE t.typtype = 'd'
    UNION ALL
    SELECT d.oid, t.typbasetype, CASE WHEN d.modifier = -1 THEN t.typtypmod ELSE d.modifier END
    FROM domain AS d JOIN pg_type AS t ON t.oid = d.type AND t.typtype = 'd'
), base AS (
    SELECT d.oid, d.type, d.modifier
    FROM domain AS d JOIN pg_type AS t ON t.oid = d.type AND t.typtype <> 'd'
)
SELECT a.attrelid::bigint AS relation, a.attname AS name, a.attnum AS attribute_number,
       a.atttypid::bigint AS declared_oid, a.atttypmod AS declared_modifier,
       t.oid::bigint AS type_oid, t.typname AS type_name,
       CASE WHEN b.oid IS NULL THEN a.atttypmod ELSE b.modifier END AS type_modifier,
       format_type(t.oid, CASE WHEN b.oid IS NULL THEN a.atttypmod ELSE b.modifier END) AS type_text,
       NOT a.attnotnull AS nullable,
       a.attlen = -1 AND a.attstorage <> 'p' AS toastable,
       a.attlen AS length,
       a.attgenerated = 's' AS stored, a.attgenerated = 'v' AS virtual,
       a.attgenerated <> '' AND (a.attgenerated <> 's' OR current_setting('server_version_num')::int < 180000)
           AS left_out,
       a.xmin::text AS version,
       CASE WHEN a.atthasmissing THEN (a.attmissingval::text::text[])[1] END AS missing_value,
       CASE WHEN e.typdelim = ',' THEN CASE WHEN e.oid < 16384 THEN '' ELSE en.nspname || '.' END || e.typname
       ELSE '' END AS element
FROM pg_attribute AS a
LEFT JOIN base AS b ON b.oid = a.atttypid
JOIN pg_type AS t ON t.oid = coalesce(b.type, a.atttypid)
LEFT JOIN pg_type AS e ON e.typarray = t.oid AND e.oid = t.typelem
LEFT JOIN pg_namespace AS en ON en.oid = e.typnamespace
WHERE a.attrelid = ANY(%(oids)s::bigint[]::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""

#: Primary keys and replica identity indexes, columns in the index's order.
KEYS = """
SELECT i.indrelid::bigint AS relation, i.indisprimary AS is_primary, i.indisreplident AS is_identity,
       NOT i.indimmediate AS deferrable,
       array_agg(a.attname::text ORDER BY k.position) AS columns
FROM pg_index AS i
CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attribute_number, position)
JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attribute_number
WHERE i.indrelid = ANY(%(oids)s::bigint[]::oid[])
  AND (i.indisprimary OR i.indisreplident) AND i.indisvalid AND k.position <= i.indnkeyatts
GROUP BY i.indexrelid, i.indrelid, i.indisprimary, i.indisreplident, i.indimmediate
"""

#: Columns that a whole index is ordered by first; text only where that is the order of its bytes ("C").
INDEXED = """
SELECT i.indrelid::bigint AS relation, a.attname AS name
FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_am AS m ON m.oid = c.relam AND m.amname = 'btree'
JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = ANY(%(oids)s::bigint[]::oid[]) AND i.indisvalid AND i.indpred IS NULL
  AND i.indcollation[0] IN (0, 'pg_catalog."C"'::regcollation::oid)
"""

#: What each publication holds, leaf by leaf (or the root, where it publishes via the root).
MEMBERS = """
SELECT c.oid::bigint AS relation, p.pubname AS publication
FROM pg_publication_tables AS p
JOIN pg_namespace AS n ON n.nspname = p.schemaname
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = p.tablename
"""

#: A relation that was seen in the log, and the root of the partition tree it belongs to.
ROOT_OF = """
SELECT n.nspname AS namespace, c.relname AS name, rn.nspname AS root_namespace, r.relname AS root_name,
       r.oid::bigint AS root,
       c.relreplident::text AS replica_identity
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_class AS r ON r.oid = coalesce(pg_partition_root(c.oid)::oid, c.oid)
JOIN pg_namespace AS rn ON rn.oid = r.relnamespace
WHERE c.oid = %(oid)s::bigint::oid
"""

#: The files that hold the rows of a table: its own, or its leaves'. Through pg_inherits, since
#: pg_partition_tree locks every partition, and capture must not wait behind somebody's VACUUM FULL.
STORAGE = """
WITH RECURSIVE tree AS (
    SELECT c.oid, c.relkind FROM pg_class AS c WHERE c.oid = %(oid)s::bigint::oid
    UNION ALL
    SELECT c.oid, c.relkind
    FROM tree
    JOIN pg_inherits AS i ON i.inhparent = tree.oid AND tree.relkind = 'p' AND NOT i.inhdetachpending
    JOIN pg_class AS c ON c.oid = i.inhrelid
)
SELECT t.oid::bigint AS oid, coalesce(pg_relation_filenode(t.oid), 0)::bigint AS filenode
FROM tree AS t
WHERE t.relkind <> 'p'
"""
