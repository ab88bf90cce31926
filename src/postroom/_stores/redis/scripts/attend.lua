-- needs:
-- Takes the soft lease of the store if it is free, and returns when the next messages of boxes are due. It is not a script of
-- one box. On a cluster the keys may be on different nodes: then it runs once for the lease, and once for each box.
--
-- Keys: of the lease, if `process` is given; then, for each box, the sorted sets that have times. Arguments: `process`,
-- `lease` in microseconds, `sets`: how many sorted sets a box has. Returns in microseconds: the rest of the lease of another
-- process, or nil, if `process` is given; then, for each box, the time until a message is due, or nil.

-- Returns the rest of the lease of another process. If there is none, the process has the lease now.
local function take_soft_lease(key)
  local lease = call('HMGET', key, 'process', 'until')
  local rest = (tonumber(lease[2]) or 0) - now
  if rest <= 0 or (args.lease <= 0 and lease[1] == args.process) then
    call('HDEL', key, 'full') -- a server that has reached `maxmemory` accepts the next write, see `write_even_if_full`
    call('HSET', key, 'process', args.process, 'until', format('%.0f', now + args.lease))
    return false
  end
  return lease[1] ~= args.process and rest
end

local reply, read, earliest = {}, 0, nil
for position, key in ipairs(KEYS) do
  if position == 1 and args.process then
    reply[1] = take_soft_lease(key)
  else
    local time = tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
    if time and not (earliest and earliest <= time) then earliest = time end
    read = read + 1
    if read == args.sets then
      reply[#reply + 1] = earliest and earliest - now or false
      read, earliest = 0, nil
    end
  end
end
return reply
