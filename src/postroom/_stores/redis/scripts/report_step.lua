-- needs: entries known_keys fifo joins naming
-- Ends a pending step of a join. Arguments: `join`; `step`: see lib/naming.lua; `failed`. Returns 1 if the step was pending.
local join = args.join
local record = joins and joins.load(join)
if not record then return NO_JOIN end
local id = id_named(args.step)
if not id then return NO_MESSAGE end
local value = call('HGET', MEMBERSHIPS, id)
local at = joins.position_of_step(value, join)
if not at then return NO_STEP end
local state = read_progress(call('HGET', STATES, id))[STATE]
if record.status ~= 'pending' or joins.outcome_at(value, at) ~= NO_OUTCOME or joins.step_status(state) ~= 'pending' then
  return 0
end
write_even_if_full()
call('HSET', MEMBERSHIPS, id, joins.with_outcome(value, at, args.failed and 'f' or 'c'))
joins.count_steps(record, args.failed and 'failed' or 'completed', 1)
joins.save(join, record)
joins.wake(record)
publish_wakeup()
return 1
