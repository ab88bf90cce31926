-- needs: entries joins
-- Finds steps of a join, in id order. Arguments: `join`, `after` (an id), `limit`. Returns {id, source, message id, status,
-- time} per step, as MessagePack. Source and message id are false if the message was purged.
local join = args.join
if not joins or not joins.load(join) then return NO_JOIN end
local ids = call('ZRANGEBYLEX', STEPS, '(' .. join .. args.after, '(' .. join .. '\255', 'LIMIT', 0, args.limit)
for index, member in ipairs(ids) do ids[index] = id_of(member) end
local memberships, records, bodies =
  fetch('HMGET', MEMBERSHIPS, ids), fetch('HMGET', STATES, ids), fetch('HMGET', MESSAGES, ids)
local steps, STATUS_OF_OUTCOME = {}, {c = 'completed', f = 'failed'}
for index, id in ipairs(ids) do
  local value, body = memberships[index], bodies[index]
  local at, content = joins.position_of_step(value, join), body and content_of(body)
  local status = STATUS_OF_OUTCOME[joins.outcome_at(value, at)]
    or (body and joins.step_status(read_progress(records[index])[STATE]) or 'completed')
  steps[index] = {
    tonumber(id), content and content.source, content and content.message_id, status,
    tonumber(sub(value, at + 33, at + 48)),
  }
end
return pack(steps)
