-- needs: entries fifo joins transitions
-- Puts messages back whose lease has ended (`duty` is "free"), or makes messages dead that have expired. Arguments: `duty`,
-- `limit`. Returns their number.
write_even_if_full()
if args.duty == 'free' then
  local lapsed = call('ZRANGEBYSCORE', CAPTURED, '-inf', now, 'WITHSCORES', 'LIMIT', 0, args.limit)
  for index = 1, #lapsed, 2 do
    local id, lease_end = lapsed[index], tonumber(lapsed[index + 1])
    local group = line_of(id)
    if group then unlock(group, id) end
    local entry = load(id)
    entry.progress[LOST_LEASES] = entry.progress[LOST_LEASES] + 1
    put_back(entry, lease_end)
  end
  publish_wakeup()
  return #lapsed / 2
end
local expired = call('ZRANGEBYSCORE', EXPIRING, '-inf', now, 'LIMIT', 0, args.limit)
for _, id in ipairs(expired) do bury(load(id), 'expired') end
publish_wakeup()
return #expired
