-- needs: entries names lines endings finding
-- Messages that fit, in id order, as a MessagePack array of [id, content, progress, lease end]; and where to go on.
local ids, next_after, bodies, records = find(given)
local times = fetch('ZMSCORE', CAPTURED, ids)
local parts = {struct.pack('>BI4', 0xdd, #ids)}
local waiting = pack(UNTOUCHED)
for index, id in ipairs(ids) do
  parts[#parts + 1] = '\148\176' .. id .. '\158'
  parts[#parts + 1] = bodies[index]
  parts[#parts + 1] = records[index] or waiting
  parts[#parts + 1] = pack(tonumber(times[index] or 0))
end
return {concat(parts), next_after}
