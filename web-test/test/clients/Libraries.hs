-- | The tests that need packages of others, by name: "Spec.Libraries" runs them, or skips them where the packages are
-- not installed.
module Libraries
  ( libraryTests,
  )
where

-- | Groups and their tests.
libraryTests :: [(String, [String])]
libraryTests =
  [ ( "middlewares",
      [ "wai-extra: gzip",
        "wai-extra: request logger",
        "wai-extra: basic authentication",
        "wai-extra: autohead, method override, real address",
        "wai-extra: uploads of forms",
        "wai-extra: events",
        "wai-extra: time limit",
        "wai-app-static: files, ranges and conditions"
      ]
    ),
    ( "websockets",
      [ "echoes of any kind and size",
        "many at once",
        "messages and silence for longer than the time of clients",
        "closed by either side, and gone",
        "through the reverse proxy: messages of any kind, refusals and ends",
        "gone while a program runs that was started meanwhile",
        "over HTTP/2, by python3-h2",
        "a browser: fetch, connections kept, WebSockets",
        "a browser over TLS"
      ]
    ),
    ( "http-client",
      [ "connections are kept",
        "many at once",
        "streams in both directions",
        "a response that is left in the middle"
      ]
    )
  ]
