-- needs:
-- Seen, claimed, done, dead, and all of them with the waiting.
return {
  call('ZCARD', SEEN), call('ZCARD', CAPTURED), call('ZCARD', DONE), call('ZCARD', DLQ), call('HLEN', MESSAGES),
}
