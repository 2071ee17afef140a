"""Describes the schema `leasehold` as sorted lines from the system catalogs, to compare databases.

Objects appear by name instead of by OID, and privileges are spelled out and sorted. So two
databases that were built differently give the same lines exactly when their schemas are equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg.rows import tuple_row

if TYPE_CHECKING:
    import psycopg


def _acl(column: str, kind: str, owner: str) -> str:
    """SQL for the privileges in a fixed order; NULL means the defaults of that kind of object."""
    return (
        f"array(SELECT item::text FROM unnest(coalesce({column}, acldefault('{kind}', {owner})))"
        " item ORDER BY 1)"
    )


_QUERIES = {
    "schema": f"""
        SELECT nspname, pg_get_userbyid(nspowner), {_acl("nspacl", "n", "nspowner")},
               obj_description(oid, 'pg_namespace')
          FROM pg_namespace WHERE oid = 'leasehold'::regnamespace""",
    "default privileges": """
        SELECT pg_get_userbyid(defaclrole), defaclnamespace::regnamespace, defaclobjtype, defaclacl
          FROM pg_default_acl""",
    "relation": f"""
        SELECT c.oid::regclass, relkind, pg_get_userbyid(relowner), relpersistence, amname,
               array(SELECT unnest(reloptions) ORDER BY 1), relrowsecurity, relforcerowsecurity,
               relreplident, pg_get_partkeydef(c.oid), pg_get_expr(relpartbound, c.oid),
               {_acl("relacl", "r", "relowner")}, obj_description(c.oid, 'pg_class')
          FROM pg_class c LEFT JOIN pg_am a ON a.oid = c.relam
         WHERE relnamespace = 'leasehold'::regnamespace AND relkind <> 'S'""",
    "parent": """
        SELECT inhrelid::regclass, inhparent::regclass, inhdetachpending
          FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid
         WHERE relnamespace = 'leasehold'::regnamespace""",
    "column": f"""
        SELECT c.oid::regclass, attname,
               row_number() OVER (PARTITION BY c.oid ORDER BY attnum) AS place,
               format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid),
               attidentity, attgenerated, attstorage, attcompression, attislocal,
               nullif(attcollation, 0)::regcollation,
               -- Some builds of PostgreSQL stamp every column with a version of their own.
               array(SELECT declared FROM unnest(attoptions) AS declared
                      WHERE NOT starts_with(declared, 'pg_attver=') ORDER BY 1) AS attoptions,
               {_acl("attacl", "c", "relowner")}, col_description(c.oid, attnum)
          FROM pg_class c JOIN pg_attribute ON attrelid = c.oid
          LEFT JOIN pg_attrdef ON adrelid = c.oid AND adnum = attnum
         WHERE relnamespace = 'leasehold'::regnamespace AND attnum > 0 AND NOT attisdropped
           AND relkind NOT IN ('i', 'I', 'S')""",
    "constraint": """
        SELECT conrelid::regclass, contypid::regtype, conname, contype, pg_get_constraintdef(oid),
               condeferrable, condeferred, convalidated, conislocal,
               obj_description(oid, 'pg_constraint')
          FROM pg_constraint WHERE connamespace = 'leasehold'::regnamespace""",
    "index": """
        SELECT indexrelid::regclass, pg_get_indexdef(indexrelid), indisvalid, indisclustered,
               indisreplident
          FROM pg_index JOIN pg_class c ON c.oid = indrelid
         WHERE relnamespace = 'leasehold'::regnamespace""",
    "trigger": """
        SELECT pg_get_triggerdef(t.oid), tgenabled, tgparentid <> 0,
               obj_description(t.oid, 'pg_trigger')
          FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
         WHERE relnamespace = 'leasehold'::regnamespace AND NOT tgisinternal""",
    "function": f"""
        SELECT p.oid::regprocedure, pg_get_functiondef(p.oid), pg_get_userbyid(proowner),
               {_acl("proacl", "f", "proowner")}, obj_description(p.oid, 'pg_proc')
          FROM pg_proc p
         WHERE pronamespace = 'leasehold'::regnamespace AND prokind <> 'a'""",
    "view": """
        SELECT oid::regclass, pg_get_viewdef(oid)
          FROM pg_class WHERE relnamespace = 'leasehold'::regnamespace AND relkind IN ('v', 'm')""",
    "sequence": f"""
        SELECT c.oid::regclass, pg_get_userbyid(relowner), seqtypid::regtype, seqstart,
               seqincrement, seqmin, seqmax, seqcache, seqcycle, {_acl("relacl", "s", "relowner")}
          FROM pg_sequence JOIN pg_class c ON c.oid = seqrelid
         WHERE relnamespace = 'leasehold'::regnamespace""",
    "type": f"""
        SELECT t.oid::regtype, typtype, pg_get_userbyid(typowner),
               format_type(typbasetype, typtypmod), typnotnull, typdefault,
               array(SELECT enumlabel FROM pg_enum WHERE enumtypid = t.oid ORDER BY enumsortorder),
               {_acl("typacl", "T", "typowner")}, obj_description(t.oid, 'pg_type')
          FROM pg_type t
         WHERE typnamespace = 'leasehold'::regnamespace AND typcategory <> 'A'""",
    "policy": """
        SELECT tablename, policyname, permissive, roles, cmd, qual, with_check
          FROM pg_policies WHERE schemaname = 'leasehold'""",
    "rule": """
        SELECT ev_class::regclass, pg_get_ruledef(r.oid)
          FROM pg_rewrite r JOIN pg_class c ON c.oid = ev_class
         WHERE relnamespace = 'leasehold'::regnamespace AND rulename <> '_RETURN'""",
    "statistics": """
        SELECT pg_get_statisticsobjdef(oid), stxstattarget
          FROM pg_statistic_ext WHERE stxnamespace = 'leasehold'::regnamespace""",
    "role": """
        SELECT rolname, rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin,
               rolreplication, rolbypassrls, rolconnlimit, rolconfig
          FROM pg_roles WHERE rolname LIKE 'leasehold\\_%'""",
    "role member of role": """
        SELECT roleid::regrole, member::regrole
          FROM pg_auth_members
         WHERE member::regrole::text LIKE 'leasehold\\_%'""",
}


def snapshot(connection: psycopg.Connection[Any]) -> list[str]:
    """Return the schema as sorted lines; an empty list if the schema does not exist."""
    lines: list[str] = []
    with connection.transaction(), connection.cursor(row_factory=tuple_row) as cursor:
        # Names outside pg_catalog are then printed with their schema.
        cursor.execute("SET LOCAL search_path = pg_catalog")
        if cursor.execute("SELECT to_regnamespace('leasehold')").fetchone() == (None,):
            return []
        for what, query in _QUERIES.items():
            rows = cursor.execute(f"SELECT row_to_json(line)::text FROM ({query}) line").fetchall()
            lines += [f"{what} {row}" for (row,) in rows]
    return sorted(lines)
