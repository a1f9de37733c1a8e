"""A library's loans: Flask on forked gunicorn workers, in front of PostgreSQL.

    DATABASE=postgresql://… gunicorn --workers 8 service:app
"""
import os
import random

import psycopg
from flask import Flask, jsonify

MEMBERS = 100
LOANS = 150_000

app = Flask(__name__)
connection = None


def query(sql, *arguments):
    global connection
    if connection is None or connection.closed:
        # Prepared statements don't work with a pool that assigns connections by transaction.
        connection = psycopg.connect(os.environ["DATABASE"], autocommit=True, prepare_threshold=None)
    return jsonify(connection.execute(sql, arguments).fetchall())


@app.get("/member")
def member():
    sql = "SELECT book, count(*), sum(days) FROM loans WHERE member = %s GROUP BY book ORDER BY 3 DESC LIMIT 20"
    return query(sql, random.randrange(MEMBERS))


@app.get("/search")
def search():
    first = random.randrange(LOANS - 20_000)
    sql = "SELECT id, note FROM loans WHERE id BETWEEN %s AND %s AND note LIKE '%%777%%' LIMIT 50"
    return query(sql, first, first + 20_000)


@app.get("/report")
def report():
    sql = "SELECT book, count(*), avg(days)::float8, max(note) FROM loans GROUP BY book HAVING avg(days) > %s"
    return query(sql, random.randrange(5))
