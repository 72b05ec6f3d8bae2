{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : A timeline as one page
--
-- Pure: a self-contained HTML page with the rows on a canvas (zoomed by Ctrl and the wheel, keys or buttons,
-- moved by dragging or a wheel that goes sideways; what goes up or down, wheel or finger, scrolls the page), wake-ups
-- as arrows, the counts of markers, and a histogram of wake-up latencies. Activities differ by height and position as
-- well as by colour.
module Weft.Tools.Trace.Page
  ( timelinePage,
    latencyClasses,
  )
where

import Data.Int (Int64)
import Data.List (sortOn)
import qualified Data.Map.Strict as M
import Data.Text (Text)
import qualified Data.Text as T
import Weft.Tools.Markup (escape)
import Weft.Tools.Numbers (renderNumber)
import Weft.Tools.Trace.Timeline

-- | The page: its title, and what is to be said first, a paragraph each. If there are more spans or arrows than a
-- browser can draw, only the first are shown, and the page says so.
timelinePage :: Text -> [Text] -> Timeline -> Text
timelinePage title remarks timeline =
  T.concat
    [ "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">",
      "<link rel=\"icon\" href=\"data:,\"><title>" <> escape title <> "</title><style>" <> style <> "</style></head><body>",
      "<h1>" <> escape title <> "</h1><p>" <> summary <> "</p>",
      T.concat ["<p><b>" <> escape remark <> "</b></p>" | remark <- remarks],
      "<p>A row is a capability: the right of GHC's run-time system to run Haskell code on one core. High bars are threads that run, Weft's dispatcher (or the threads of GHC's manager) and collections of garbage, which stop all rows. The low grey bar is the time for which the manager sleeps in the kernel, as nothing is to be done.</p>",
      "<div class=\"bar\"><button data-do=\"in\">+ zoom in</button><button data-do=\"out\">\8722 zoom out</button><button data-do=\"left\">\8592 left</button><button data-do=\"right\">right \8594</button><button data-do=\"all\">all</button> <span id=\"where\"></span></div>",
      "<canvas id=\"c\" tabindex=\"0\" aria-label=\"What each capability did over time\"></canvas><p id=\"tip\">Ctrl and the wheel, or + and - to zoom; drag or arrow keys to move; point at a span to see what it is.</p>",
      "<ul class=\"legend\">" <> T.concat ["<li><i style=\"background:" <> colour a <> "\"></i>" <> activityName a <> "</li>" | a <- [minBound ..]] <> "<li>\8600 a thread is woken on another capability</li><li><i style=\"background:" <> filesColour <> "\"></i>requests to files in the ring: the higher the more</li></ul>",
      clipped,
      "<h2>Where the time went</h2><div class=\"wide\"><table><tr><th>capability</th>" <> T.concat ["<th>" <> activityName a <> "</th>" | a <- [minBound ..]] <> "</tr>" <> T.concat (map shares (M.keys (timelineRows timeline))) <> "</table></div>",
      "<h2>From ready to running</h2><p>How long threads that were woken waited until they ran. A collection stops all capabilities: the long ones are often that, not I/O.</p>",
      histogram,
      "<h2>Counted</h2><table>" <> T.concat ["<tr><td>" <> escape k <> "</td><td class=\"n\">" <> T.pack (show v) <> "</td></tr>" | (k, v) <- M.toList (timelineCounts timeline)] <> "</table>",
      "<script>const D=" <> dataText <> ";" <> script <> "</script></body></html>\n"
    ]
  where
    rows = M.toList (timelineRows timeline)
    spans = [(cap, s) | (cap, list) <- rows, s <- list]
    depths = [(cap, d) | (cap, list) <- M.toList (timelineDepths timeline), d <- list]
    limit = 150000
    arrowLimit = 20000
    shownSpans = firstOf spanFrom spans
    shownDepths = firstOf depthFrom depths
    -- The first in time, by capability.
    firstOf from list = if length list > limit then sortOn fst (take limit (sortOn (from . snd) list)) else list
    crossing = filter (\a -> arrowFromRow a /= arrowToRow a) (timelineArrows timeline)
    shownArrows = take arrowLimit crossing
    clipped = T.concat ["<p><b>Only the first " <> number drawn <> " of " <> number n <> " " <> what <> " are drawn; record a shorter time.</b></p>" | (what, n, drawn) <- [("spans", length spans, limit), ("wake-ups", length crossing, arrowLimit), ("changes of requests to files", length depths, limit)], n > drawn]
    number = T.pack . show :: Int -> Text
    latencies = [arrowTo a - arrowFrom a | a <- timelineArrows timeline]
    summary = renderNumber (fromIntegral (timelineEnd timeline) / 1e6) <> " ms, " <> number (M.size (timelineRows timeline)) <> " capabilities, " <> number (length latencies) <> " wake-ups of threads"
    shares cap = "<tr><td>" <> number cap <> "</td>" <> T.concat ["<td class=\"n\">" <> renderNumber (100 * busyShare timeline cap a) <> " %</td>" | a <- [minBound ..]] <> "</tr>"
    histogram = "<table class=\"hist\">" <> T.concat [bar upper n | (upper, n) <- latencyClasses latencies] <> "</table>"
    most = maximum (1 : map snd (latencyClasses latencies))
    bar upper n = "<tr><td class=\"n\">\8804 " <> duration upper <> "</td><td class=\"n\">" <> number n <> "</td><td class=\"w\"><i style=\"width:" <> renderNumber (100 * fromIntegral n / fromIntegral most) <> "%\"></i></td></tr>"
    duration ns
      | ns < 1000 = T.pack (show ns) <> " ns"
      | ns < 1000000 = renderNumber (fromIntegral ns / 1e3) <> " \181s"
      | otherwise = renderNumber (fromIntegral ns / 1e6) <> " ms"
    names = M.fromList (zip (M.keys (M.fromList [(spanThread s, ()) | (_, s) <- shownSpans])) [0 :: Int ..])
    dataText =
      T.concat
        [ "{end:" <> T.pack (show (timelineEnd timeline)),
          ",rows:[" <> T.intercalate "," (map (number . fst) rows),
          "],names:[" <> T.intercalate "," (map quoted (M.keys names)),
          "],spans:[" <> T.intercalate "," [T.intercalate "," [number cap, T.pack (show (spanFrom s)), T.pack (show (spanTo s)), number (fromEnum (spanActivity s)), number (M.findWithDefault 0 (spanThread s) names)] | (cap, s) <- shownSpans],
          "],arrows:[" <> T.intercalate "," [T.intercalate "," [T.pack (show (arrowFrom a)), number (arrowFromRow a), T.pack (show (arrowTo a)), number (arrowToRow a)] | a <- shownArrows],
          "],files:[" <> T.intercalate "," [T.intercalate "," [number cap, T.pack (show (depthFrom d)), T.pack (show (depthTo d)), number (depthRequests d)] | (cap, d) <- shownDepths],
          "],filesColour:" <> quoted filesColour <> ",deepest:" <> number (maximum (1 : map (depthRequests . snd) depths)) <> ",colours:[" <> T.intercalate "," (map (quoted . colour) [minBound ..]),
          "],kinds:[" <> T.intercalate "," (map (quoted . activityName) [minBound ..]) <> "]}"
        ]

-- | The number of latencies in classes that double, from the shortest latency to the longest.
latencyClasses :: [Int64] -> [(Int64, Int)]
latencyClasses latencies
  | null latencies = []
  | otherwise = [(upper, M.findWithDefault 0 upper counted) | upper <- takeWhile (<= largest) (dropWhile (< smallest) (iterate (* 2) 250))]
  where
    counted = M.fromListWith (+) [(classOf l, 1) | l <- latencies]
    classOf l = until (>= l) (* 2) 250
    (smallest, largest) = (fst (M.findMin counted), fst (M.findMax counted))

-- | As in the charts of weft-bench: the colours of Okabe and Ito.
colour :: Activity -> Text
colour activity = case activity of
  Running -> "#56b4e9"
  Dispatching -> "#0072b2"
  Collecting -> "#e69f00"
  Blocked -> "#999999"

-- | From the same palette.
filesColour :: Text
filesColour = "#cc79a7"

-- | A JavaScript string literal that cannot end its script element.
quoted :: Text -> Text
quoted text = "\"" <> T.concatMap one text <> "\""
  where
    one c
      | c `elem` ("\"\\" :: String) = T.pack ['\\', c]
      | c == '<' = "\\u003c"
      | c < ' ' = " "
      | otherwise = T.singleton c

style :: Text
style =
  ":root{color-scheme:light dark;--ink:#222;--paper:#fff;--line:#d9d9d9}@media(prefers-color-scheme:dark){:root{--ink:#e8e8e8;--paper:#161616;--line:#444}}\
  \*{box-sizing:border-box}body{margin:0 auto;padding:12px;max-width:1400px;font:15px/1.45 system-ui,Helvetica,Arial,sans-serif;color:var(--ink);background:var(--paper);overflow-wrap:anywhere}\
  \h1{font-size:1.3rem;margin:.2em 0}h2{font-size:1.1rem;margin:1.2em 0 .3em}p{margin:.4em 0}canvas{width:100%;display:block;border:1px solid var(--line);touch-action:pan-y pinch-zoom;cursor:grab}\
  \button{font:inherit;padding:6px 10px;margin:2px}.legend{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:4px 18px}.legend i{display:inline-block;width:14px;height:14px;margin-right:6px;vertical-align:-2px}\
  \.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem}th,td{overflow-wrap:normal;text-align:left;padding:3px 12px 3px 0;border-bottom:1px solid var(--line)}.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}\
  \.hist{width:100%;max-width:640px}.hist .w{width:100%}.hist i{display:block;height:12px;background:#0072b2}"

-- | Draws what is in the window; adjacent spans narrower than a pixel are drawn as one. A notch of a wheel zooms by
-- 1.3; a touchpad reports two fingers as Ctrl with a wheel of small steps.
script :: Text
script =
  "const c=document.getElementById('c'),g=c.getContext('2d'),rowH=58,top0=22,left0=34;let a=0,b=Math.max(1,D.end);\
  \const css=n=>getComputedStyle(document.documentElement).getPropertyValue(n).trim();\
  \const rowOf=new Map(D.rows.map((r,i)=>[r,i]));\
  \const unit=t=>t<1e3?t.toFixed(0)+' ns':t<1e6?(t/1e3).toFixed(t<1e4?2:1)+' \181s':t<1e9?(t/1e6).toFixed(t<1e7?3:1)+' ms':(t/1e9).toFixed(3)+' s';\
  \const at=t=>left0+(t-a)/(b-a)*(W()-left0),W=()=>c.clientWidth,H=()=>top0+rowH*Math.max(1,D.rows.length)+6;\
  \function box(s,i){const k=s[i+3],y=top0+rowH*rowOf.get(s[i]);return k==3?[y+34,6]:k==2?[y+2,30]:k==1?[y+6,26]:[y+12,20]}\
  \function draw(){const r=devicePixelRatio||1;c.style.height=H()+'px';c.width=W()*r;c.height=H()*r;g.setTransform(r,0,0,r,0,0);g.clearRect(0,0,W(),H());g.font='12px system-ui,sans-serif';g.fillStyle=css('--ink');\
  \D.rows.forEach((x,i)=>g.fillText(x,8,top0+rowH*i+26));\
  \const step=Math.pow(10,Math.ceil(Math.log10((b-a)/10)));for(let t=Math.ceil(a/step)*step;t<b;t+=step){const x=at(t);g.fillStyle=css('--line');g.fillRect(x,top0-6,1,H());g.fillStyle=css('--ink');if(x<W()-60)g.fillText(unit(t),x+3,12)}\
  \const s=D.spans,last={};for(let i=0;i<s.length;i+=5){if(s[i+2]<a||s[i+1]>b)continue;const x=Math.max(left0,at(s[i+1])),w=Math.max(1,at(s[i+2])-x),key=s[i]*4+s[i+3];if(w<=1&&last[key]===Math.round(x))continue;last[key]=Math.round(x);const[y,h]=box(s,i);g.fillStyle=D.colours[s[i+3]];g.fillRect(x,y,w,h)}\
  \const f=D.files;g.fillStyle=D.filesColour;for(let i=0,p=-1;i<f.length;i+=4){if(f[i+2]<a||f[i+1]>b||!rowOf.has(f[i]))continue;const x=Math.max(left0,at(f[i+1])),w=Math.max(1,at(f[i+2])-x),h=2+10*f[i+3]/D.deepest;if(w<=1&&Math.round(x)===p)continue;p=Math.round(x);g.fillRect(x,top0+rowH*rowOf.get(f[i])+54-h,w,h)}\
  \const v=D.arrows,n=[];for(let i=0;i<v.length&&n.length<1500;i+=4)if(v[i+2]>=a&&v[i]<=b)n.push(i);if(n.length<1500){g.strokeStyle=css('--ink');g.beginPath();for(const i of n){const x=at(v[i]),y=top0+rowH*rowOf.get(v[i+1])+20,X=at(v[i+2]),Y=top0+rowH*rowOf.get(v[i+3])+20;g.moveTo(x,y);g.lineTo(X,Y);g.moveTo(X-4,Y+(y<Y?-5:5));g.lineTo(X,Y);g.lineTo(X+2,Y+(y<Y?-6:6))}g.stroke()}\
  \document.getElementById('where').textContent=unit(a)+' to '+unit(b)+(n.length>=1500?' (zoom in for wake-ups)':'')}\
  \function zoom(f,t){const w=Math.min(D.end,Math.max(100,(b-a)*f));const p=(t-a)/(b-a);a=t-p*w;b=a+w;fix()}\
  \function move(d){a+=d;b+=d;fix()}function fix(){const w=b-a;if(a<0){a=0;b=w}if(b>D.end){b=Math.max(1,D.end);a=Math.max(0,b-w)}draw()}\
  \const time=e=>a+(e.offsetX-left0)/(W()-left0)*(b-a);\
  \c.addEventListener('wheel',e=>{const zooms=e.ctrlKey||e.metaKey;if(zooms||Math.abs(e.deltaX)>Math.abs(e.deltaY)){e.preventDefault();if(zooms)zoom(Math.exp(Math.max(-26,Math.min(26,e.deltaMode?26*e.deltaY:e.deltaY))/100),time(e));else move(e.deltaX/(W()-left0)*(b-a))}},{passive:false});\
  \let drag=null;c.onpointerdown=e=>{drag=e.offsetX;c.setPointerCapture(e.pointerId)};c.onpointerup=c.onpointercancel=()=>drag=null;\
  \c.onpointermove=e=>{if(drag!==null){move((drag-e.offsetX)/(W()-left0)*(b-a));drag=e.offsetX;return}const t=time(e),s=D.spans;let best='';for(let i=0;i<s.length;i+=5){if(s[i+1]<=t&&t<=s[i+2]){const[y,h]=box(s,i);if(e.offsetY>=y&&e.offsetY<=y+h)best=D.kinds[s[i+3]]+(D.names[s[i+4]]?': '+D.names[s[i+4]]:'')+', '+unit(s[i+2]-s[i+1])+' from '+unit(s[i+1])}}const f=D.files;for(let i=0;i<f.length;i+=4)if(rowOf.has(f[i])&&f[i+1]<=t&&t<=f[i+2]&&e.offsetY>=top0+rowH*rowOf.get(f[i])+42&&e.offsetY<top0+rowH*rowOf.get(f[i])+56)best=f[i+3]+' requests to files in the ring, for '+unit(f[i+2]-f[i+1]);if(best)document.getElementById('tip').textContent=best};\
  \const does={in:()=>zoom(1/2,(a+b)/2),out:()=>zoom(2,(a+b)/2),left:()=>move((a-b)/4),right:()=>move((b-a)/4),all:()=>{a=0;b=Math.max(1,D.end);draw()}};\
  \document.querySelectorAll('button').forEach(e=>e.onclick=does[e.dataset.do]);\
  \onkeydown=e=>{const f={'+':'in','=':'in','-':'out',ArrowLeft:'left',ArrowRight:'right','0':'all'}[e.key];if(f){does[f]();e.preventDefault()}};onresize=draw;draw();"
