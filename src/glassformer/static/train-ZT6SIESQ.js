import{a,b,c}from"./chunk-FLEKHO7E.js";import"./chunk-6UPDEARX.js";import"./chunk-SVPYO5R6.js";import"./chunk-N73RJWD4.js";import"./chunk-7ZHCL5J4.js";export{c as Heads,b as Train,a as joined};
