-- The end of a join.

-- Returns the status of a join by its steps and its deadline. The same rule as `status_of` in _kernel/joins.py.
local function status_by_steps(record)
  if is_filled(record) and not has_pending_steps(record) then
    return record.failed > 0 and record.fails and 'failed' or 'completed'
  end
  return record.deadline and record.deadline <= now and 'failed' or 'pending'
end

-- Ends a join. Its counts stay as they are now.
local function end_join(join, record, status)
  record.status, record.updated_at = status, now
  record.ended_completed, record.ended_failed = record.completed, record.failed
  save_join(join, record)
  call('ZADD', ENDED_JOINS, now_text, join)
end
