"""The caller's transaction, for each driver that transactional enqueue supports.

Each context manager yields what a user of that driver passes to `enqueue`. It commits at the end
and rolls back on an exception.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from urllib.parse import quote

import asyncpg
import django
import psycopg
import sqlalchemy
from django import db as django_db
from django.conf import settings as django_settings
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session


def url_of(conninfo: str, scheme: str = "postgresql") -> str:
    given = conninfo_to_dict(conninfo)
    place = f"{given['user']}:{quote(given['password'])}@{given['host']}:{given['port']}"
    return f"{scheme}://{place}/{given['dbname']}"


@contextmanager
def of_psycopg(conninfo):
    # A caller may use any row factory.
    with psycopg.connect(conninfo, row_factory=dict_row) as connection:
        yield connection


@contextmanager
def of_sqlalchemy_session(conninfo):
    engine = sqlalchemy.create_engine(url_of(conninfo, "postgresql+psycopg"))
    try:
        with Session(engine) as session, session.begin():
            yield session
    finally:
        engine.dispose()


@contextmanager
def of_sqlalchemy_connection(conninfo):
    engine = sqlalchemy.create_engine(url_of(conninfo, "postgresql+psycopg"))
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def use_django(conninfo):
    """Point Django's default connection at a database; a process has one configuration."""
    given = conninfo_to_dict(conninfo)
    address = {
        "NAME": given["dbname"],
        "USER": given["user"],
        "PASSWORD": given["password"],
        "HOST": given["host"],
        "PORT": given["port"],
    }
    if not django_settings.configured:
        engine = {"ENGINE": "django.db.backends.postgresql"}
        django_settings.configure(
            DATABASES={"default": engine | address}, USE_TZ=True, LOGGING_CONFIG=None
        )
        django.setup()
    django_db.connection.settings_dict.update(address)


@contextmanager
def of_django(conninfo):
    use_django(conninfo)
    try:
        with django_db.transaction.atomic():
            yield django_db.connection
    finally:
        django_db.connection.close()


@asynccontextmanager
async def of_psycopg_async(conninfo):
    connection = await psycopg.AsyncConnection.connect(conninfo, row_factory=dict_row)
    async with connection:
        yield connection


@asynccontextmanager
async def of_sqlalchemy_async_session(conninfo):
    engine = create_async_engine(url_of(conninfo, "postgresql+psycopg"))
    try:
        async with AsyncSession(engine) as session, session.begin():
            yield session
    finally:
        await engine.dispose()


@asynccontextmanager
async def of_sqlalchemy_async_connection(conninfo):
    engine = create_async_engine(url_of(conninfo, "postgresql+asyncpg"))
    try:
        async with engine.begin() as connection:
            yield connection
    finally:
        await engine.dispose()


@asynccontextmanager
async def of_asyncpg(conninfo):
    connection = await asyncpg.connect(url_of(conninfo))
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def of_asyncpg_pool(conninfo):
    async with (
        asyncpg.create_pool(url_of(conninfo), min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield connection


SYNC = (of_psycopg, of_sqlalchemy_session, of_sqlalchemy_connection, of_django)
ASYNC = (
    of_psycopg_async,
    of_sqlalchemy_async_session,
    of_sqlalchemy_async_connection,
    of_asyncpg,
    of_asyncpg_pool,
)
