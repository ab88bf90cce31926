-- needs: entries known_keys fifo joins transitions arrivals
-- Starts a join. Arguments: `join`, `tenant_id`, `expected`, `metadata`, `deadline`, and `block` (see lib/arrivals.lua). A
-- second call, after a lost reply, changes nothing.
if call('HEXISTS', JOINS, args.join) == 1 then return 1 end
if not has_ids(1) then return NEEDS_IDS end
-- Its number is an id of the box. It is on no page: pages count messages.
sequence = sequence + 1
call('HSET', META, 'sequence', sequence)
local content = {number = sequence, tenant_id = args.tenant_id, metadata = args.metadata, created_at = now}
call('HSET', JOINS, args.join, pack(content))
call('ZADD', JOIN_INDEX, sequence, args.join)
call('HSET', JOIN_STATES, args.join, pack({
  status = 'pending', expected = args.expected, sealed = false, attached = 0, completed = 0, failed = 0, fails = true,
  deadline = args.deadline, updated_at = now,
}))
return 1
