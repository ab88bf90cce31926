# noqa: A005 - inside of tests it hides nothing
