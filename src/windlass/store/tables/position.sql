-- part: beyond
-- The bound of a page that is newest first: after this position, or from the first row if it is null. It is always a
-- plain value, so that an index scan can start from it.
(coalesce($1::timestamptz, 'infinity'), coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))

-- part: from_position
-- The same for a page that is oldest first.
(coalesce($1::timestamptz, '-infinity'), coalesce($2::uuid, '00000000-0000-0000-0000-000000000000'))
