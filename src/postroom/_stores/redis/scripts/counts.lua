-- needs:
-- Returns the numbers of seen, claimed, done, dead and all messages. The rest is waiting.
return {
  call('ZCARD', SEEN), call('ZCARD', CAPTURED), call('ZCARD', DONE), call('ZCARD', DLQ), call('HLEN', MESSAGES),
}
