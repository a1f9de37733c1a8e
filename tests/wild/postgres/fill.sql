CREATE TABLE loans AS
  SELECT n AS id, n % 100 AS member, (n * 7919) % 50 AS book, (n * 104729) % 60 AS days, 'loan ' || md5(n::text) AS note
  FROM generate_series(0::bigint, 149999) AS n;
ALTER TABLE loans ADD PRIMARY KEY (id);
CREATE INDEX by_member ON loans (member);
ANALYZE loans;
