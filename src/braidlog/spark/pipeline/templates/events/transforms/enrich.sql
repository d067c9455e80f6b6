-- The view `input` has the columns of the schema, and _topic, _partition, _offset, _timestamp, _time, _id, _key,
-- which must all be kept.
SELECT *, date(_time) AS day
FROM input
