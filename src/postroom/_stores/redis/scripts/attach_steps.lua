-- needs: entries known_keys fifo joins naming
-- Makes messages steps of a join. Arguments: `join`, and `steps`: see lib/naming.lua. Returns one digit per step: 1 if it was
-- none before.
local record = joins and joins.load(args.join)
if not record then return NO_JOIN end
local ids, new, seen = {}, 0, {}
for index, step in ipairs(args.steps) do
  local id = id_named(step)
  if not id then return NO_MESSAGE end
  ids[index] = id
end
for index, value in ipairs(fetch('HMGET', MEMBERSHIPS, ids)) do
  local id = ids[index]
  if not seen[id] and not joins.position_of_step(value, args.join) then new = new + 1 end
  seen[id] = true
end
local reason = joins.refusal(record, seen, new)
if reason then return reason end
local digits = {}
for index, is_new in ipairs(joins.attach(args.join, record, ids)) do digits[index] = is_new and '1' or '0' end
publish_wakeup()
return concat(digits)
