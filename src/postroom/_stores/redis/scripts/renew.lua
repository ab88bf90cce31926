-- needs: entries
-- Moves the end of leases that still hold.
even_if_full()
local records = fetch('HMGET', STATES, given.ids)
local scores, kept = {}, {}
local lease_end = format('%.0f', now + given.lease)
for index, id in ipairs(given.ids) do
  local progress = view(records[index])
  local holds = progress[STATE] == 'c' and progress[OWNER] == given.owners[index] and progress[FENCE] == given.fences[index]
  kept[index] = holds and '1' or '0'
  if holds then scores[#scores + 1], scores[#scores + 2] = lease_end, id end
end
if #scores > 0 then write('ZADD', CAPTURED, scores) end
return concat(kept)
