-- needs: entries known_keys fifo joins transitions finding
-- Finds messages, in id order. Arguments: a filter, see lib/finding.lua. Returns their ids in one string; their contents as a
-- list of strings (see `join_rows`), with two more fields each: the progress, and the end of the lease or 0; and the `after` of
-- the next call.
local ids, next_after, bodies, records = find(args)
local lease_ends = fetch('ZMSCORE', CAPTURED, ids)
local rows, untouched_record = {}, pack(UNTOUCHED)
for index, body in ipairs(bodies) do
  rows[index] = body .. (records[index] or untouched_record) .. pack(tonumber(lease_ends[index] or 0))
end
return {concat(ids), join_rows(rows, CONTENT_FIELDS + 2), next_after}
