-- |
-- Description : Findings of @weft doctor@
--
-- Pure: a line of a report has a mark, a subject, and a finding with its reason.
module Weft.Tools.Doctor.Finding
  ( Finding (..),
    Mark (..),
    fact,
    fine,
    advise,
    wrong,
    renderFinding,
    markName,
  )
where

-- | A fact, a good setting, one that could be better, or one that does not work.
data Mark = Fact | Fine | Advice | Wrong
  deriving (Eq, Ord, Show)

-- | A mark, the subject, and the finding.
data Finding = Finding !Mark String String
  deriving (Eq, Show)

fact, fine, advise, wrong :: String -> String -> Finding

-- | A fact without judgement.
fact = Finding Fact

-- | Nothing has to be changed.
fine = Finding Fine

-- | It works, and could be better: the text says how.
advise = Finding Advice

-- | It does not work: the text says why.
wrong = Finding Wrong

-- | A line: mark, subject, finding.
renderFinding :: Finding -> String
renderFinding (Finding mark name found) = sign <> " " <> name <> replicate (20 - length name) ' ' <> " " <> found
  where
    sign = case mark of
      Fact -> "    "
      Fine -> "[ok]"
      Advice -> "[!] "
      Wrong -> "[XX]"

-- | The mark's name in JSON.
markName :: Mark -> String
markName mark = case mark of
  Fact -> "fact"
  Fine -> "ok"
  Advice -> "advice"
  Wrong -> "wrong"
