-- | The tests that need packages of others, by name: "Spec.Libraries" runs them, or skips them where the packages are
-- not installed.
module Libraries
  ( libraryTests,
    clientTests,
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
        "a browser over TLS",
        "a browser, through the reverse proxy",
        "a browser over TLS, through the reverse proxy"
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

-- | The same of packages that are built on @http-client@, on Weft's connections ("Weft.Http.Client.Manager").
clientTests :: [(String, [String])]
clientTests =
  [ ( "wreq",
      [ "GET, JSON, forms, and a status that is an error",
        "a session keeps its connection and its cookies",
        "TLS with nginx: a name of Weft's resolver, an authority of one's own",
        "a name whose first address is silent",
        "the limit on time in each phase",
        "nobody listens"
      ]
    ),
    ( "servant-client",
      [ "calls, and a status that is an error",
        "many calls at once over the connections of one manager",
        "TLS with nginx: a name of Weft's resolver, an authority of one's own",
        "the limit on time in each phase, of a manager and of a request",
        "nobody listens, and nobody has the name"
      ]
    )
  ]
