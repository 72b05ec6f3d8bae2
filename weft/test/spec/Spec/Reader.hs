{-# LANGUAGE OverloadedStrings #-}

-- |
-- "Weft.Reader" and "Weft.Writer": what they return against a model on the whole stream, that nothing is lost, and
-- what they hold.
module Spec.Reader
  ( tests,
  )
where

import Control.Concurrent (forkIO, killThread, myThreadId, yield)
import Control.Exception
import Control.Monad
import qualified Data.Attoparsec.ByteString.Char8 as A
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.IORef
import Foreign.C.Error (eINVAL, ePIPE)
import Foreign.Ptr (castPtr)
import Harness
import Network.Socket (SockAddr (..))
import System.IO.Error (isEOFError)
import Test.Tasty
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck
import Weft.Duration
import Weft.Reader
import Weft.Transport
import Weft.Writer

tests :: TestTree
tests =
  testGroup
    "Reader"
    [ testProperty "agrees with a model on the whole stream" agrees,
      testCase "a limit that is exceeded takes nothing" limits,
      testCase "a stream that ends early takes nothing" ends,
      testCase "a deadline takes nothing, and what came in time is returned" deadlines,
      testCase "interruptions lose nothing" interruptions,
      testCase "single bytes take little memory" singleBytes,
      testCase "arguments that make no sense" $ do
        r <- scripted ["abc"] >>= newReader
        failsWith "less than nothing" eINVAL (readExactly r noDeadline (-1))
        failsWith "no delimiter" eINVAL (readUntil r noDeadline "")
        readToEnd r noDeadline 3 >>= (@?= "abc"),
      testGroup
        "attoparsec"
        [ testCase "values in pieces" parsed,
          testCase "what is not accepted stays" unparsable,
          testCase "a value beyond the limit" endless
        ],
      testGroup
        "Writer"
        [ testCase "small pieces are sent together" gathers,
          testProperty "sends what was written, in order" ordered,
          testCase "nothing is sent twice after a failure" broken
        ]
    ]

-- | A connection that receives these strings, one at a time, and then the end.
scripted :: [B.ByteString] -> IO Connection
scripted strings = newIORef strings >>= \left -> pure (Connection scriptedOperations left)

scriptedOperations :: Operations (IORef [B.ByteString])
scriptedOperations =
  Operations
    { opReceive = \left _ n -> do
        found <- readIORef left
        case found of
          [] -> pure B.empty
          s : rest -> B.take n s <$ writeIORef left ([B.drop n s | B.length s > n] <> rest),
      opSend = \_ _ _ -> pure (),
      opSendMany = \_ _ _ -> pure (),
      opSendFile = \_ _ _ _ -> pure (),
      opShutdownSend = \_ _ -> pure (),
      opClose = const (pure ()),
      opAbort = const (pure ()),
      opPeer = const (SockAddrUnix ""),
      opLocal = const (pure (SockAddrUnix "")),
      opSendProgress = const (pure Nothing),
      opAwaitPeer = Nothing,
      opIsQuiet = const (pure False),
      opSecurity = const Nothing,
      opKeepsStrings = const True
    }

-- The model --------------------------------------------------------------------------

data Command = Exactly Int | Line | Until B.ByteString | Back B.ByteString | Leave
  deriving (Show)

data Result = Bytes B.ByteString | NoMore | Early | TooLong
  deriving (Eq, Show)

instance Arbitrary Command where
  arbitrary =
    frequency
      [ (4, Exactly <$> choose (0, 30)),
        (4, pure Line),
        (4, Until . B8.pack <$> resize 3 (listOf1 letter)),
        (1, Back . B8.pack <$> resize 9 (listOf letter)),
        (1, pure Leave)
      ]

letter :: Gen Char
letter = elements "ab\r\n"

-- | With the limit, the result of a command on a stream, and the stream that is left.
model :: Int -> Command -> B.ByteString -> (Result, B.ByteString)
model limit command stream = case command of
  Exactly n
    | B.length stream < n -> (Early, stream)
    | otherwise -> (Bytes (B.take n stream), B.drop n stream)
  Line -> case upTo "\n" of
    (Bytes s, rest) -> (Bytes (if "\r" `B.isSuffixOf` s then B.init s else s), rest)
    (Early, rest) | B.null rest -> (NoMore, rest)
    other -> other
  Until delimiter -> upTo delimiter
  Back s -> (NoMore, s <> stream)
  Leave -> (NoMore, stream)
  where
    upTo delimiter = case B.breakSubstring delimiter stream of
      (part, rest)
        | B.length part > limit -> (TooLong, stream)
        | B.null rest -> (Early, stream)
        | otherwise -> (Bytes part, B.drop (B.length delimiter) rest)

agrees :: Property
agrees = forAll stream $ \strings -> forAll (choose (0, 40)) $ \limit commands -> ioProperty $ do
  c <- scripted (filter (not . B.null) strings)
  reader <- newReaderWith limit c
  go limit reader (B.concat strings) (commands :: [Command])
  where
    stream = listOf (B8.pack <$> listOf letter)
    go limit reader left [] = do
      rest <- readToEnd reader noDeadline maxBound
      pure (counterexample ("the rest, with limit " <> show limit) (rest === left))
    go limit reader left (command : more) = do
      (got, reader') <- run limit reader command
      let (expected, left') = model limit command left
      -- Whether a part without its delimiter is too long or ends early may differ by what is a delimiter's beginning.
      if got == expected || (endless' command && got `elem` [Early, TooLong] && expected `elem` [Early, TooLong])
        then go limit reader' left' more
        else pure (counterexample (show command <> " of " <> show left) (got === expected))
    endless' command = case command of
      Until _ -> True
      _ -> False
    run limit reader command = case command of
      Exactly n -> with reader (Bytes <$> readExactly reader noDeadline n)
      Line -> with reader (maybe NoMore Bytes <$> readLine reader noDeadline)
      Until d -> with reader (Bytes <$> readUntil reader noDeadline d)
      Back s -> with reader (NoMore <$ putBack reader s)
      Leave -> (,) NoMore <$> (leaveReader reader >>= newReaderWith limit)
    with reader act = do
      r <- try act
      case r of
        Right a -> pure (a, reader)
        Left e
          | Just (LimitExceeded _) <- fromException e -> pure (TooLong, reader)
          | Just io <- fromException e, isEOFError io -> pure (Early, reader)
          | otherwise -> throwIO (e :: SomeException)

-- Nothing is lost --------------------------------------------------------------------

limits :: Assertion
limits = do
  r <- scripted ["0123456789", "0123456789\nab", "c"] >>= newReaderWith 19
  tooLong 19 (readLine r noDeadline)
  tooLong 19 (readLine r noDeadline)
  tooLong 21 (readToEnd r noDeadline 21)
  readExactly r noDeadline 1 >>= (@?= "0")
  readLine r noDeadline >>= (@?= Just "1234567890123456789")
  readToEnd r noDeadline 3 >>= (@?= "abc")

tooLong :: Show a => Int -> IO a -> Assertion
tooLong n act = try act >>= either (@?= LimitExceeded n) (assertFailure . ("no limit: " <>) . show)

ends :: Assertion
ends = do
  r <- scripted ["one\r\ntw", "o"] >>= newReader
  readLine r noDeadline >>= (@?= Just "one")
  early (readLine r noDeadline)
  early (readUntil r noDeadline "o2")
  early (readExactly r noDeadline 4)
  readerHeld r >>= (@?= 3)
  readSome r noDeadline >>= (@?= "two")
  readSome r noDeadline >>= (@?= "")
  readLine r noDeadline >>= (@?= Nothing)
  readExactly r noDeadline 0 >>= (@?= "")

early :: IO a -> Assertion
early act = do
  e <- failure "a stream that ends early" act
  assertBool (show e) (isEOFError e)

pair :: IO (Connection, Connection)
pair = connectionPair 65536 (SockAddrUnix "a") (SockAddrUnix "b")

deadlines :: Assertion
deadlines = do
  (a, b) <- pair
  r <- newReader b
  connSendBytes a noDeadline "01234"
  forM_ [1 .. 3 :: Int] $ \_ -> do
    soon <- deadlineIn (milliseconds 5)
    e <- failure "a deadline" (readExactly r soon 10)
    assertBool (show e) (isTimeout e)
  past <- deadlineIn mempty
  readExactly r past 5 >>= (@?= "01234")
  connSendBytes a noDeadline "line\n"
  readLine r past >>= (@?= Just "line")

data Interruption = Interruption
  deriving (Show)

instance Exception Interruption

-- | A thread reads lines, masked, while another one throws to it all the time.
interruptions :: Assertion
interruptions = finishes "reading under interruptions" $ do
  (a, b) <- pair
  r <- newReader b
  got <- newIORef []
  reading <- start . mask_ $ do
    let go = do
          line <- try (readLine r noDeadline)
          case line of
            Left Interruption -> go
            Right (Just s) -> modifyIORef' got (s :) >> go
            Right Nothing -> pure ()
    me <- myThreadId
    interrupter <- forkIO (forever (throwTo me Interruption >> yield))
    go `finally` uninterruptibleMask_ (killThread interrupter)
  let expected = [B8.pack (show n) | n <- [1 .. times 3000]]
  sending <- start $ do
    forM_ expected $ \line -> do
      connSendBytes a noDeadline (B.take 1 line)
      yield
      connSendBytes a noDeadline (B.drop 1 line <> "\n")
    connShutdownSend a noDeadline
  result "sending" sending
  result "reading" reading
  lines' <- reverse <$> readIORef got
  lines' @?= expected

-- | 20 readers with 50,000 bytes that came one at a time: a megabyte. As a list of strings they would take 24 at least.
-- What earlier tests have left is freed meanwhile, or not.
singleBytes :: Assertion
singleBytes = do
  before <- liveBytes
  readers <- replicateM 20 $ do
    r <- scripted (replicate 50000 "x" <> ["\r"]) >>= newReader
    early (readUntil r noDeadline "\n")
    pure r
  now <- liveBytes
  held <- sum <$> mapM readerHeld readers
  held @?= 1000020
  assertBool (show (now - before) <> " bytes") (now - before < 12000000)

-- Parsers ----------------------------------------------------------------------------

number :: A.Parser Int
number = A.decimal <* A.char ';'

parse :: Reader -> IO (Either String Int)
parse r = readParsed step (A.parse number) r noDeadline
  where
    step res = case res of
      A.Partial go -> NeedsMore go
      A.Done rest a -> Parsed rest a
      A.Fail _ _ e -> Unparsable e

parsed :: Assertion
parsed = do
  r <- scripted ["1", "2;3", ";", "4;5;6", ";left"] >>= newReader
  mapM (const (parse r)) [1 .. 5 :: Int] >>= (@?= map Right [12, 3, 4, 5, 6])
  readToEnd r noDeadline 100 >>= (@?= "left")

unparsable :: Assertion
unparsable = do
  r <- scripted ["1", "2x", "3;"] >>= newReader
  parse r >>= either (const (pure ())) (assertFailure . show)
  readUntil r noDeadline "x" >>= (@?= "12")
  parse r >>= (@?= Right 3)
  parse r >>= either (const (pure ())) (assertFailure . show)

endless :: Assertion
endless = do
  r <- scripted (replicate 50 "1" <> [";"]) >>= newReaderWith 20
  tooLong 20 (parse r)
  readExactly r noDeadline 40 >>= (@?= B8.replicate 40 '1')
  parse r >>= (@?= Right 1111111111)

-- Writers ----------------------------------------------------------------------------

-- | A connection that notes what is sent at once. It fails from a given send on.
noting :: Int -> IO (Connection, IO [B.ByteString])
noting most = do
  sent <- newIORef []
  let note strings = do
        before <- readIORef sent
        if length before >= most then ioError (userError "no more") else writeIORef sent (B.concat strings : before)
      operations =
        Operations
          { opReceive = \_ _ _ -> pure B.empty,
            opSend = \_ _ (Region p n) -> B.packCStringLen (castPtr p, n) >>= note . pure,
            opSendMany = \_ _ -> note,
            opSendFile = \_ _ _ _ -> pure (),
            opShutdownSend = \_ _ -> pure (),
            opClose = const (pure ()),
            opAbort = const (pure ()),
            opPeer = const (SockAddrUnix ""),
            opLocal = const (pure (SockAddrUnix "")),
            opSendProgress = const (pure Nothing),
            opAwaitPeer = Nothing,
            opIsQuiet = const (pure False),
            opSecurity = const Nothing,
            opKeepsStrings = const True
          }
  pure (Connection operations (), reverse <$> readIORef sent)

gathers :: Assertion
gathers = do
  (c, sent) <- noting maxBound
  w <- newWriterWith 10 c
  writeMany w noDeadline ["1", "23", "", "456", "789"]
  sent >>= (@?= [])
  writerHeld w >>= (@?= 9)
  write w noDeadline "abcdef"
  sent >>= (@?= ["123456789abcdef"])
  flush w noDeadline
  write w noDeadline "g"
  flush w noDeadline
  flush w noDeadline
  sent >>= (@?= ["123456789abcdef", "g"])

ordered :: Property
ordered = forAll (choose (1, 10000)) $ \size -> forAll (listOf (choose (0, 6000))) $ \sizes -> ioProperty $ do
  (c, sent) <- noting maxBound
  w <- newWriterWith size c
  let strings = zipWith (\n x -> B8.replicate n x) sizes (cycle ['a' .. 'z'])
  writeMany w noDeadline strings
  held <- writerHeld w
  flush w noDeadline
  got <- sent
  pure (B.concat got === B.concat strings .&&. counterexample "held" (held < size))

broken :: Assertion
broken = do
  (c, sent) <- noting 1
  w <- newWriterWith 4 c
  write w noDeadline "1234"
  _ <- failure "the second send" (write w noDeadline "5678")
  failsWith "writing" ePIPE (write w noDeadline "9")
  failsWith "flushing" ePIPE (flush w noDeadline)
  sent >>= (@?= ["1234"])
