-- needs: entries
-- Moves the end of leases that still hold. Arguments: `ids`, `owners` and `fences` of the claims, `lease` in microseconds.
-- Returns one digit per claim: 1 if it still holds.
write_even_if_full()
local records = fetch('HMGET', STATES, args.ids)
local scores, kept = {}, {}
local lease_end = format('%.0f', now + args.lease)
for index, id in ipairs(args.ids) do
  local progress = read_progress(records[index])
  local holds = progress[STATE] == 'c' and progress[OWNER] == args.owners[index] and progress[FENCE] == args.fences[index]
  kept[index] = holds and '1' or '0'
  if holds then scores[#scores + 1], scores[#scores + 2] = lease_end, id end
end
if #scores > 0 then write('ZADD', CAPTURED, scores) end
return concat(kept)
