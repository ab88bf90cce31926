-- needs: entries lines endings
-- Frees leases that have passed, or buries messages past `expires`; at most so many.
even_if_full()
if given.duty == 'free' then
  local late = call('ZRANGEBYSCORE', CAPTURED, '-inf', now, 'WITHSCORES', 'LIMIT', 0, given.limit)
  for index = 1, #late, 2 do
    local id = late[index]
    local group = line_of(id)
    if group then unlock(group, id) end
    local entry = load(id)
    entry.progress[LOST] = entry.progress[LOST] + 1
    put_back(entry, tonumber(late[index + 1]))
  end
  tell()
  return #late / 2
end
local expired = call('ZRANGEBYSCORE', EXPIRING, '-inf', now, 'LIMIT', 0, given.limit)
for _, id in ipairs(expired) do bury(load(id), 'expired') end
tell()
return #expired
