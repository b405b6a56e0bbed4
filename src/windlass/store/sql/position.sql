-- part: beyond
-- Where a page that is newest first begins: behind this position, or with the first row if it is null. The bound is one
-- that an index is read from, whether it is given or not.
(coalesce($1::timestamptz, 'infinity'), coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))

-- part: from_position
-- The same for a page that is oldest first.
(coalesce($1::timestamptz, '-infinity'), coalesce($2::uuid, '00000000-0000-0000-0000-000000000000'))
