-- |
-- The service of the example @shop@, between a PostgreSQL and a server of files, both of which fail now and then.
module ShopTest (shop) where

import Control.Concurrent
import Control.Exception (bracket)
import Control.Monad
import Curl (curl)
import Network.Socket
import Running
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO
import System.Process
import System.Timeout (timeout)
import Test.Tasty.HUnit
import Weft.Test.Services (withFolder, withPostgres)
import Weft.Test.Skip (needProgram, skipUnless)

shop :: Assertion
shop = do
  there <- isBuilt "shop"
  skipUnless "the example shop is not built: Debian's packages of the frameworks are not installed" there
  needProgram "psql"
  withPostgres $ \database -> withFolder "prices" $ \folder -> do
    _ <- sql database "CREATE TABLE stock (name text PRIMARY KEY, pieces int NOT NULL)"
    _ <- sql database "INSERT INTO stock VALUES ('tea', 40), ('black tea', 3), ('coffee', 7)"
    mapM_ (\(name, costs) -> writeFile (folder </> name) costs) [("tea", "3.20"), ("black tea", "4.10"), ("milk", "1.10")]
    runningWith "hybrid-web" [folder, "--port", "0"] $ \prices -> do
      serving database prices $ \process ask -> do
        answers database ask
        drained database process ask
      -- The service that knows prices does not answer, and the database is not there.
      serving database 1 $ \_ ask -> ask "/tea" >>= \said -> lines said !! 1 @?= "502"
      serving "host=/nonexistent" prices $ \_ ask -> ask "/tea" >>= \said -> lines said !! 1 @?= "503"
    -- A service that accepts, and says nothing.
    bracket (socket AF_INET Stream defaultProtocol) close $ \silent -> do
      bind silent (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1))) >> listen silent 16
      port <- socketPort silent
      serving database port $ \_ ask -> ask "/tea" >>= \said -> lines said !! 1 @?= "504"

-- | Run it, with that service for prices; the function asks for a path, and tells body and status, a line each.
serving :: String -> PortNumber -> (ProcessHandle -> (String -> IO String) -> IO a) -> IO a
serving database prices act = started "shop" [database, "http://127.0.0.1:" <> show prices, "0"] $ \process port ->
  act process (\path -> curl ["-w", "%{http_code}", "http://127.0.0.1:" <> show port <> path])

answers :: String -> (String -> IO String) -> Assertion
answers database ask = do
  says "/tea" tea
  says "/black%20tea" "3 pieces, 4.10 each\n200"
  -- One of the two does not know it.
  says "/coffee" "there is no such thing\n404"
  says "/milk" "there is no such thing\n404"
  says "/tea/cups" "there is nothing here\n404"
  -- More at once than there are connections: the others wait.
  ends <- replicateM 40 (newEmptyMVar >>= \box -> box <$ forkFinally (says "/tea" tea) (putMVar box))
  mapM_ (takeMVar >=> either (assertFailure . show) pure) ends
  kept <- sql database ("SELECT count(*)" <> ours)
  assertBool kept (read kept `elem` [1 .. 8 :: Int])
  -- The database ends the connections, as when it is started anew: the service finds out about those that it keeps.
  _ <- sql database ("SELECT pg_terminate_backend(pid)" <> ours)
  threadDelay 600000
  replicateM_ 10 (says "/tea" tea)
  -- A statement that takes too long is given up.
  locked database (ask "/tea") >>= \said -> lines said !! 1 @?= "504"
  says "/tea" tea
  where
    ours = " FROM pg_stat_activity WHERE backend_type = 'client backend' AND application_name <> 'psql'"
    -- On a busy machine two seconds may pass.
    says path expected = attempt (10 :: Int)
      where
        attempt n = do
          said <- ask path
          if n > 0 && last (lines said) == "504" then attempt (n - 1) else said @?= expected

-- | What is being answered when the service is told to end is answered: in time or too late, on a busy machine.
drained :: String -> ProcessHandle -> (String -> IO String) -> Assertion
drained database process ask = do
  late <- newEmptyMVar
  locked database $ do
    _ <- forkIO (ask "/tea" >>= putMVar late)
    waits (100 :: Int)
    terminateProcess process
    threadDelay 200000
  said <- takeMVar late
  assertBool said (said == tea || last (lines said) == "504")
  timeout 40000000 (waitForProcess process) >>= (@?= Just ExitSuccess)
  where
    waits n = do
      waiting <- sql database "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
      unless (n == 0 || waiting /= "0\n") (threadDelay 20000 >> waits (n - 1))

tea :: String
tea = "40 pieces, 3.20 each\n200"

-- | Run an action while nobody else can read the table.
locked :: String -> IO a -> IO a
locked database act = withCreateProcess psql {std_in = CreatePipe, std_out = CreatePipe} $ \input output _ process ->
  case (input, output) of
    (Just i, Just o) -> do
      hPutStr i "BEGIN; LOCK TABLE stock;\n\\echo locked\n" >> hFlush i
      hGetLine o >>= (@?= "locked")
      a <- act
      hPutStr i "COMMIT;\n" >> hClose i
      waitForProcess process >>= (@?= ExitSuccess)
      pure a
    _ -> assertFailure "no pipes"
  where
    psql = proc "psql" ["-qtA", "-v", "ON_ERROR_STOP=1", database]

-- | What a statement says.
sql :: String -> String -> IO String
sql database statement = do
  (code, out, err) <- readProcessWithExitCode "psql" ["-qtA", "-v", "ON_ERROR_STOP=1", "-c", statement, database] ""
  out <$ ((code, err) @?= (ExitSuccess, ""))
