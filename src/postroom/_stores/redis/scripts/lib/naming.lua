-- Naming: a message that is, or becomes, a step of a join is named by its id, or by {source, message id}.

-- Returned instead of a result, before any write: there is no such message; it is not a step of the join.
local NO_MESSAGE, NO_STEP = 'no message', 'no step'

-- Returns the id of the message, or nil if the box has none.
local function id_named(step)
  if type(step) == 'table' then return holder(step[1], step[2]) end
  return call('HEXISTS', MESSAGES, step) == 1 and step or nil
end
