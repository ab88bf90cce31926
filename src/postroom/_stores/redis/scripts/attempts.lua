-- needs: entries known_keys fifo joins transitions settlements
-- Returns the attempt counter of each target. While a claim holds, only its owner's settlement changes it.
-- Arguments: a list of {id} or {message_id, source}.
local attempts = {}
for index, target in ipairs(args) do
  local id = target.id or id_by_name(target.message_id, target.source)
  if id == AMBIGUOUS then return AMBIGUOUS end
  attempts[index] = id and read_progress(call('HGET', STATES, id))[ATTEMPT] or 0
end
return attempts
