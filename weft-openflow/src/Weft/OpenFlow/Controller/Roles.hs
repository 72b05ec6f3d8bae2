-- |
-- The controller's role at a switch. In 1.3 the switch is asked for the role, and its answer decides; 1.0 has no roles,
-- and the controller has its role at once.
--
-- @
--   settled -> asked     a role is set: ROLE_REQUEST with the role and a generation ID
--   asked   -> settled   ROLE_REPLY: the switch has given the role
--   asked   -> reading   ERROR, stale: the switch has seen a later generation ID; ROLE_REQUEST with NOCHANGE
--   reading -> asked     ROLE_REPLY with the switch's generation ID: ROLE_REQUEST with this ID for a slave, the next
--                        one for a master
--   asked, reading -> settled   another ERROR, or stale too many times: reported; the switch has left the role as it
--                               was. If it does not support roles, the controller has the role nevertheless, as in 1.0
--   any     -> asked     the time to be master is over ('timeOver'): ROLE_REQUEST with the role of a slave
--   any     -> asked     another role is set; answers to earlier requests, which have other transaction IDs, are
--                        ignored
-- @
--
-- A controller that is to be a slave is one at once, whatever the switch answers. One that is to be a master is active,
-- so that its applications receive events and send, only after the answer (1.3.5, 6.3.5). A role that was set in the
-- meantime replaces the request, so a controller that has lost its lease does not ask again for the role of a master.
--
-- A slave asks with the generation ID that the switch has, since a later one would make the master's requests stale. A
-- master asks with the next one, which makes those of earlier masters stale. IDs are compared by the sign of their
-- difference, as the switch does, so they may wrap around.
module Weft.OpenFlow.Controller.Roles
  ( assumeRole,
    takeRole,
    timeOver,
    roleGiven,
    roleRefused,
    configure,
    tableMissFlow,
    tableMissCookie,
    restoreReporting,
  )
where

import Control.Concurrent.MVar
import Control.Monad (forM, unless, void, when)
import Data.IORef
import Data.Int (Int64)
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe)
import Data.Word (Word16, Word64)
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller.Discovery
import Weft.OpenFlow.Controller.Types
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.Timer (milliseconds, schedule)

-- | Change this controller's role at the switch. The generation ID is the least one to ask with.
takeRole :: Controller -> Session -> Role -> Word64 -> IO ()
takeRole c s role generation = do
  new <- modifyMVar (sessionRole s) (\n -> (,) (n + 1) <$> assumeRole s role generation)
  -- A switch at which this controller was a slave is new to the applications, and so are its ports.
  when new (takenOver c s >>= deliverFrom c s)

-- | 'settingsActiveUntil' is over: become a slave of the switch. A role that it gives later is ignored. Called by the
-- switch's thread.
timeOver :: Session -> IO ()
timeOver s = modifyMVar_ (sessionRole s) $ \n -> do
  active <- readIORef (sessionActive s)
  asked <- readIORef (sessionClaim s)
  if active || maybe False ((/= RoleSlave) . claimRole) asked
    then do
      generation <- fromMaybe (maybe 0 claimGeneration asked) <$> readIORef (sessionGeneration s)
      n + 1 <$ assumeRole s RoleSlave generation
    else pure n

-- | Become a slave at once, or ask the switch for another role. Returns whether the controller is active now and was
-- not before. 'sessionRole' must be held.
assumeRole :: Session -> Role -> Word64 -> IO Bool
assumeRole s role generation
  | sessionVersion s == V10 || role == RoleSlave = do
    before <- atomicModifyIORef' (sessionActive s) ((,) (role /= RoleSlave))
    when (sessionVersion s == V13) ask
    let new = role /= RoleSlave && not before
    new <$ when new (configure s)
  | otherwise = False <$ ask
  where
    ask = do
      known <- readIORef (sessionGeneration s)
      asked <- readIORef (sessionClaim s)
      -- The same request is not sent again before its answer: the switch has it.
      unless (fmap claimRole asked == Just role && fmap (newest generation . claimGeneration) asked == fmap claimGeneration asked) $
        request s (Claim 0 role (maybe generation (newest generation) known) False 0)

-- | The later one of two generation IDs.
newest :: Word64 -> Word64 -> Word64
newest a b = if (fromIntegral (a - b) :: Int64) > 0 then a else b

-- | Send the request of a claim, with a new transaction ID.
request :: Session -> Claim -> IO ()
request s claim = do
  xid <- nextXid s
  writeIORef (sessionClaim s) (Just claim {claimXid = xid})
  void (postMessage s xid (if claimReading claim then RoleRequest RoleNoChange 0 else RoleRequest (claimRole claim) (claimGeneration claim)))

-- | A ROLE_REPLY. The event for the applications, if the controller has become active; the ports must be requested
-- after it. Called by the switch's thread.
roleGiven :: Controller -> Session -> Xid -> Role -> Word64 -> IO (Maybe Event)
roleGiven c s xid role generation = do
  new <- withMVar (sessionRole s) $ \_ -> do
    asked <- readIORef (sessionClaim s)
    case asked of
      Just claim | claimXid claim == xid -> given claim
      _ -> pure False
  if new then Just <$> takenOver c s else pure Nothing
  where
    given claim
      | claimReading claim = do
        writeIORef (sessionGeneration s) (Just generation)
        False <$ request s claim {claimReading = False, claimGeneration = if claimRole claim == RoleSlave then generation else generation + 1}
      | role /= claimRole claim = False <$ settled c s (Just ("it has answered a request for the role " <> named (claimRole claim) <> " with the role " <> named role))
      | otherwise = do
        settled c s Nothing
        writeIORef (sessionGeneration s) (Just (claimGeneration claim))
        if role == RoleSlave then False <$ writeIORef (sessionActive s) False else activated s

-- | The controller is active from now on. Returns whether it was not before. 'sessionRole' must be held.
activated :: Session -> IO Bool
activated s = do
  before <- atomicModifyIORef' (sessionActive s) ((,) True)
  not before <$ unless before (configure s)

-- | An ERROR message. 'Nothing': it refuses no role and is for others. Otherwise the event as with 'roleGiven'. Called
-- by the switch's thread.
roleRefused :: Controller -> Session -> Xid -> Word16 -> Word16 -> IO (Maybe (Maybe Event))
roleRefused c s xid kind code = do
  found <- withMVar (sessionRole s) $ \_ -> do
    asked <- readIORef (sessionClaim s)
    case asked of
      Just claim | claimXid claim == xid -> Just <$> refused claim
      _ -> pure Nothing
  forM found (\new -> if new then Just <$> takenOver c s else pure Nothing)
  where
    refused claim
      | kind == roleRequestFailed && code == 0 && not (claimReading claim) && claimTries claim < mostTries =
        False <$ request s claim {claimReading = True, claimTries = claimTries claim + 1}
      | otherwise = do
        settled c s (Just ("it has refused the role " <> named (claimRole claim) <> ": " <> reason))
        -- Without roles all controllers are equal to the switch, as with 1.0.
        if kind == roleRequestFailed && code == 1 && claimRole claim /= RoleSlave then activated s else pure False
    reason
      | kind /= roleRequestFailed = "ERROR, type " <> show kind <> ", code " <> show code
      | otherwise = case code of
        0 -> "the generation ID is stale"
        1 -> "it does not support roles"
        2 -> "it does not support this role"
        _ -> "ERROR, type " <> show kind <> ", code " <> show code
    roleRequestFailed = 11
    -- Other controllers may ask at the same time, but not for long.
    mostTries = 8 :: Int

-- | The request has its answer. A problem is reported unless it is the one of the last request. 'sessionRole' must be
-- held.
settled :: Controller -> Session -> Maybe String -> IO ()
settled c s problem = do
  writeIORef (sessionClaim s) Nothing
  before <- atomicModifyIORef' (sessionRefusal s) ((,) problem)
  unless (problem == before) (mapM_ (report c . RoleRefused (featuresDatapath (sessionFeatures s))) problem)

named :: Role -> String
named role = case role of
  RoleNoChange -> "no change"
  RoleEqual -> "equal"
  RoleMaster -> "master"
  RoleSlave -> "slave"

-- | The event for the applications of a controller that has become active. In 1.3 the ports follow, by the reply to
-- another request.
takenOver :: Controller -> Session -> IO Event
takenOver c s = do
  known <- Map.lookup (featuresDatapath features) . topologySwitches <$> readIORef (controllerTopology c)
  pure (SwitchUp features {featuresPorts = [p | sessionVersion s == V10, Just switch <- [known], p <- Map.elems (switchPorts switch)]})
  where
    features = sessionFeatures s

-- | Let the switch report packets.
configure :: Session -> IO ()
configure s = mapM_ (uncurry (postMessage s)) (reporting (sessionVersion s))

-- | The messages by which a switch reports packets, with their transaction IDs: whole ones, and in 1.3 the table-miss
-- flow. The length 0xffff is @OFPCML_NO_BUFFER@ in 1.3 (7.3.2). In 1.0 the switch may keep the packet in a buffer, and
-- otherwise sends at most that many bytes, which is all of it (1.0.1, 5.3.2).
reporting :: Version -> [(Xid, Message)]
reporting version = (5, SetConfig (SwitchConfig 0 0xffff)) : [(6, tableMissFlow) | version == V13]

-- | The flow for packets that match no other flow: without it a switch of 1.3 drops them (1.3.5, 5.4). If another
-- program deletes it, the switch reports that, and it is installed again ('restoreReporting').
tableMissFlow :: Message
tableMissFlow =
  FlowModMessage
    defaultFlowMod
      { flowCookie = tableMissCookie,
        flowPriority = 0,
        flowFlags = flagSendFlowRemoved,
        flowInstructions = [ApplyActions [output portController]]
      }

-- | The cookie of 'tableMissFlow': @WEFT@ in ASCII, and 0.
tableMissCookie :: Word64
tableMissCookie = 0x5745465400000000

-- | Another program has changed how the switch reports packets: it has removed the table-miss flow, or replaced it or
-- the configuration by one for the first bytes only. Set both again: now, by an action that sends one message, or a
-- second after this was last done. The bound is for a switch that reports a removal when it replaces a flow, as the
-- installation does, for another program that insists, and for a switch that never sends whole packets.
restoreReporting :: Controller -> Session -> Millis -> (Xid -> Message -> IO ()) -> IO ()
restoreReporting c s time send = do
  before <- readIORef (sessionTableMiss s)
  let next = before + interval
      plan = schedule (milliseconds (fromIntegral (next - time))) (mapM_ (uncurry (sendTo c s)) messages)
  case () of
    _
      | time >= next -> writeIORef (sessionTableMiss s) time >> mapM_ (uncurry send) messages
      | time >= before -> (writeIORef (sessionTableMiss s) $! next) >> void plan
      -- They are going to be sent.
      | otherwise -> pure ()
  where
    messages = reporting (sessionVersion s)
    interval = 1000
