"""A shop's orders: Starlette in front of SQLite, whose queries run on three threads.

    DATABASE=shop.db python -m uvicorn --app-dir . service:app
"""
import asyncio
import os
import random
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

DATABASE = os.environ["DATABASE"]
CUSTOMERS = 100
ORDERS = 120_000

pool = ThreadPoolExecutor(3)
connections = threading.local()


def fill():
    dice = random.Random(1)
    rows = (
        (n, n % CUSTOMERS, dice.randrange(50), dice.randrange(1, 9_999), f"order {dice.random():.9f} by post")
        for n in range(ORDERS)
    )
    with sqlite3.connect(DATABASE) as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INT, item INT, cents INT, note TEXT)")
        database.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", rows)
        database.execute("CREATE INDEX by_customer ON orders (customer)")


def query(sql, *arguments):
    if not hasattr(connections, "own"):
        connections.own = sqlite3.connect(DATABASE)
    return connections.own.execute(sql, arguments).fetchall()


async def answer(sql, *arguments):
    return JSONResponse(await asyncio.get_running_loop().run_in_executor(pool, query, sql, *arguments))


async def customer(request):
    sql = "SELECT item, count(*), sum(cents) FROM orders WHERE customer = ? GROUP BY item ORDER BY 3 DESC"
    return await answer(sql, random.randrange(CUSTOMERS))


async def search(request):
    first = random.randrange(ORDERS - 54_000)
    sql = "SELECT id, note FROM orders WHERE id BETWEEN ? AND ? AND note LIKE '%7777%' LIMIT 50"
    return await answer(sql, first, first + 54_000)


async def report(request):
    return await answer("SELECT item, count(*), avg(cents), max(note) FROM orders GROUP BY item HAVING avg(cents) > ?",
                        random.randrange(100))


if not os.path.exists(DATABASE):
    fill()
app = Starlette(routes=[Route("/customer", customer), Route("/search", search), Route("/report", report)])
